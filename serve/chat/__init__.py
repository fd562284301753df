"""What a model's chat template says of its answers, and answers read by it: content, reasoning, calls of tools."""
