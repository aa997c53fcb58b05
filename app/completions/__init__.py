"""Chat and text completions: from an OpenAI-shaped body to tokens, and back to text."""
