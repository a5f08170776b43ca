"""Vector fields, fitted through the integrator; `families` lists the ways to find one."""
