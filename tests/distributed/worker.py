"""One process of a group: runs jobs by name and writes down what they return."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import jobs
import torch


def main() -> None:
    torch.set_num_threads(1)
    folder, names = Path(sys.argv[1]), sys.argv[2:]
    results = {}
    for text in names:
        name, *arguments = text.split(":")
        results[text] = getattr(jobs, name)(*arguments)
        (folder / f"{os.environ['RANK']}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
