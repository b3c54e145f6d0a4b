"""The dashboard: `penstock dashboard`, and the same application to mount in one of your own."""

from penstock.lazy_imports import require as _require

for _name in ("starlette", "jinja2"):
    _require(_name, "dashboard", "the dashboard")

from penstock.dashboard.app import Dashboard, create_app  # noqa: E402  the check above comes first

__all__ = ["Dashboard", "create_app"]
