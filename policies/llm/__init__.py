"""Language models as policies: prompts, strict answers, and the endpoints that give them."""
