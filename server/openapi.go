package server

import _ "embed"

// openAPI describes the routes, for those who make clients from it. A test writes it from the routes, and compares it with them.
//
//go:embed openapi.json
var openAPI []byte
