"""Makes the pull request: SGLang's tree with our commits on it, and its description."""
