"""Running language models: every call stored as it happens, nothing asked twice."""
