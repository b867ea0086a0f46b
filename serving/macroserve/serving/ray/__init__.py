"""Ray: cell schedulers as Serve applications, and all parts of a deployment on one machine."""
