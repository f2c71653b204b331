"""What is measured: episodes stored, summarised with intervals, compared in pairs and drawn."""
