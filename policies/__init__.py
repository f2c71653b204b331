"""Who decides: policies that turn a batch of views into a batch of actions."""
