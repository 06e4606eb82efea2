"""The authors' tools: building notebooks, guarding them, drawing images, benchmarks."""
