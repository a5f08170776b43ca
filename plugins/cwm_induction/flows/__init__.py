"""Vector fields, fitted through an integrator: weighted sums of terms, then inner constants."""
