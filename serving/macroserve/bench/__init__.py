"""A load generator for OpenAI endpoints, and profiles of engines."""
