"""What computing costs: derived in `formulas`, measured in `measure`."""
