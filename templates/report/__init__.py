"""The page that a build leaves beside its report.json."""
