"""``python -m bench.cost``: the cost of a database on AWS, from counted requests; ``--write`` writes docs/cost.md.

The requests of each operation are counted (``bench.requests``), prices are in ``bench.prices``, and the load is in
``bench.cost_model.Load``, which you can change to get your own figures.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.cost_page import page
from bench.requests import measure

PAGE = Path(__file__).parents[1] / "docs" / "cost.md"


def main() -> None:
    """Prints the page, or writes it."""
    options = argparse.ArgumentParser(prog="python -m bench.cost", description=__doc__)
    options.add_argument("--write", action="store_true", help="write docs/cost.md")
    text = page(measure())
    if options.parse_args().write:
        PAGE.write_text(text)
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
