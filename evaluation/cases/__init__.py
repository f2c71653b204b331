"""Contract cases: small recoveries with tools, graded by four observations side by side."""
