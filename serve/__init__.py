"""llmc.serve: engines behind an OpenAI-compatible server, over `llmc.runtime`, which knows nothing of HTTP."""
