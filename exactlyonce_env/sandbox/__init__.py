"""Many operations, real tool calls: the world that agents act in."""
