"""Programs with random outcomes: distributions of counts and events, found from transitions."""
