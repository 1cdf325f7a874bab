"""The processes of one call: what they tell each other, and the blocks that they send."""
