"""Ascendra, section 8: LP and HP instances against vLLM and Sarathi, on three A100s."""
