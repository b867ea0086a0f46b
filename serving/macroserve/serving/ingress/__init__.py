"""An ingress: the API that clients reach, and the way of each request to an instance."""
