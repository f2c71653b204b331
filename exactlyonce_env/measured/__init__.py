"""Measured delays: read a user's file, estimate with censoring, keep the result as a law."""

from exactlyonce_env.measured.fit import DelayFit, fit_delays, open_delays
from exactlyonce_env.measured.options import DelayFileOptions
from exactlyonce_env.measured.reading import MeasuredDelays, read_delays
from exactlyonce_env.measured.saved import SavedDelays, load_saved

__all__ = [
    "DelayFileOptions",
    "DelayFit",
    "MeasuredDelays",
    "SavedDelays",
    "fit_delays",
    "load_saved",
    "open_delays",
    "read_delays",
]
