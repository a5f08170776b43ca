"""Vector fields, fitted through an integrator; `families` lists the searches."""
