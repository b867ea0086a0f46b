"""EcoServe, section 4: PaDG on two clusters of commodity links."""
