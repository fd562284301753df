"""What a refusal tells people to do."""

INSTEAD = "build from the model's HuggingFace folder instead"
