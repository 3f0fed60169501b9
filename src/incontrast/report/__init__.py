"""Results as pages: tables, figures, one self-contained HTML file. No torch here."""

from incontrast.report.page import (
    Cell,
    Column,
    Facts,
    Figure,
    Page,
    Section,
    Table,
    Text,
    Verdict,
    Verdicts,
    render,
    save,
)

__all__ = [
    "Cell",
    "Column",
    "Facts",
    "Figure",
    "Page",
    "Section",
    "Table",
    "Text",
    "Verdict",
    "Verdicts",
    "render",
    "save",
]
