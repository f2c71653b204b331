"""Looking at the transcripts of a run in the browser: a local page over the store of calls."""
