"""Build, execute and guard the notebooks."""
