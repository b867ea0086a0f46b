"""How many instances a load needs: planning, pools, and the check before a scale-down."""
