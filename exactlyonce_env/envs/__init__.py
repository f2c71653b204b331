"""The Gymnasium environments: one world at a time, or many at once."""
