"""How policies learn: the Stable-Baselines3 adapter, configurations and callbacks."""
