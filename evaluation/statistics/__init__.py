"""The project's statistics in one place; well-kept libraries wherever they have them."""
