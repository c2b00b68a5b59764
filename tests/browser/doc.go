// Package browser tests the pages of `turnstone serve --ui` in a browser, Chromium, as people use them: each test is the
// story of one. -artifacts keeps a picture of how each ends.
//
// It is a module of its own, so that the store does not require what drives the browser.
package browser
