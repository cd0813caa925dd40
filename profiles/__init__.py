"""The YAML that ships with Relaunch: models, scripts, failure catalogue, noise, stages, rules."""
