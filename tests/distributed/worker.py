"""A group of processes: each runs jobs by name and writes down what they return.

They are forks of one process, so that what takes seconds to import is imported once.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path

import jobs
import lightning_fabric  # noqa: F401
import torch
import torch._dynamo  # by the first optimizer


def main() -> None:
    folder, names = Path(sys.argv[1]), sys.argv[2:]
    group = []
    for rank in range(int(os.environ["WORLD_SIZE"])):
        if (number := os.fork()) == 0:
            run(folder, names, str(rank))
        group.append(number)
    codes = [os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]) for number in group]
    sys.stdout.write(json.dumps(codes))


def run(folder: Path, names: list[str], rank: str) -> None:
    """Be one process of the group, and end."""
    code = 1
    try:
        with (folder / f"{rank}.txt").open("w") as output:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        os.environ |= {"RANK": rank, "LOCAL_RANK": rank}
        results = {}
        for text in names:
            name, *arguments = text.split(":")
            results[text] = getattr(jobs, name)(*arguments)
            (folder / f"{rank}.json").write_text(json.dumps(results))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
