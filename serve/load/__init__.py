"""Load on engines and servers: what `llmc bench` sends, measures and shows."""
