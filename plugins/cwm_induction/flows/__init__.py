"""Vector fields, fitted through the integrator."""
