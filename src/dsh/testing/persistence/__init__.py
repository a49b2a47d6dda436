"""What every store of sessions must do, as tests: for ours, and for those of plugin authors.

A store passes when a class like this one does::

    from dsh.testing.persistence.contract import Medium, PersistenceContract

    class TestMyStore(PersistenceContract):
        @pytest.fixture
        def medium(self, tmp_path: Path) -> Medium:
            return Medium("my_plugin.store:MyStore", {"path": str(tmp_path / "store")})

The plugin ``dsh.testing.plugin`` and ``pytest-asyncio`` in its mode ``auto`` must be loaded, and
``hypothesis`` be installed.
"""
