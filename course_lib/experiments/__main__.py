"""The command line of the recorded runs: `python -m course_lib.experiments --help`."""

import argparse
import os
import sys

from course_lib.notebook import run_size


def main(arguments=None):
    """List the experiments, or run one.

    Args:
        arguments: list of str; None takes the command line's.

    Returns:
        Exit status: 0, or 2 if the request cannot be carried out.
    """
    parser = argparse.ArgumentParser(
        prog="python -m course_lib.experiments",
        description="Run a recorded experiment and write it to the ledger. Without a name: list them.",
    )
    parser.add_argument("name", nargs="?", help="the experiment")
    parser.add_argument("--seeds", type=int, default=3, help="how many seeds: 0, 1, ... (default 3)")
    parser.add_argument("--profile", choices=run_size.PROFILES, help="sizes for a laptop (quick) or a GPU (full)")
    parser.add_argument("--out", metavar="FOLDER", help="write here instead of the repository's ledger")
    parser.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], help="change a setting")
    parser.add_argument("--redo", action="store_true", help="replace what is recorded")
    options = parser.parse_args(arguments)
    if options.profile:  # before the experiments' modules are imported: their defaults depend on it
        os.environ["COURSE_PROFILE"] = options.profile

    from course_lib import experiments

    if options.name is None:
        for name, found in experiments.known().items():
            print(f"{name:<24} {found.summary}")
        return 0
    try:
        settings = experiments.parse_settings(options.set, experiments.find(options.name).defaults)
        experiments.run(options.name, options.seeds, settings, options.out, options.redo)
    except experiments.ExperimentError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
