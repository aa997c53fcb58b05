"""`python -m app.doctor [--json] [--data-dir DIR]`: see `app.cli.doctor`."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import sys
from pathlib import Path

import structlog

from app.doctor.findings import is_well, lines, report
from app.doctor.service import examine
from app.doctor.settings import DoctorSettings, environment_of_local

UNWELL = 1


def main() -> None:
    parser = argparse.ArgumentParser(prog="tenfold doctor")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument(
        "--data-dir",
        type=Path,
        help="look at the Tenfold that `tenfold demo` or `tenfold serve` runs in this folder",
    )
    options = parser.parse_args()
    # What it finds is its output; what it meets on the way is in there.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    if options.data_dir is not None:
        found = environment_of_local(options.data_dir)
        if not found:
            sys.exit(f"tenfold: nothing runs in {options.data_dir}")
        os.environ.update(found)
    findings = asyncio.run(examine(DoctorSettings()))
    text = json.dumps(report(findings), indent=2) if options.json else "\n".join(lines(findings))
    sys.stdout.write(f"{text}\n")
    sys.exit(0 if is_well(findings) else UNWELL)


if __name__ == "__main__":
    main()
