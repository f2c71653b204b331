"""The one-decision permission probe: one recovery decision, replayed in three hidden worlds."""
