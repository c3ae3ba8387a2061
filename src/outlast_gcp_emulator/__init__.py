"""Google's REST protocols in front of this computer: gcloud, gsutil and Google's clients take it for the cloud."""
