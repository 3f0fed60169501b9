"""Results as pages: tables, figures, one self-contained HTML file. No torch here."""
