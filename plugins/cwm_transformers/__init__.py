"""Language models of the transformers library, in this process."""
