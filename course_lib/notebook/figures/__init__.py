"""The figures of the chapters, one module each: a figure is one call, with its alt text and caption."""
