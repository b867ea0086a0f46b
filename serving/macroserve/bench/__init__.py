"""What Macroserve measures: endpoints, its own engines, schedulers and operator, hostile cases."""
