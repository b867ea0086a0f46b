"""Admission: which specs and pod templates are taken."""
