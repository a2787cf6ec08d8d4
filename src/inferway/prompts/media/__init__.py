"""Pictures in a chat -> the tokens that stand for them, by the rule of the model's family."""
