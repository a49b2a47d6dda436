"""Floor 2: rows, patches, bundles, profiles, expressions, environment, boot."""
